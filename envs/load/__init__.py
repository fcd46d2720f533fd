"""From a name and a source to a task and its episodes."""
