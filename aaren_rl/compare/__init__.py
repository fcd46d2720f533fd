"""The command compare: agents trained and scored over several seeds, with statistics."""
