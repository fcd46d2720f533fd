"""What every room stands on: errors, files, the process, and fields that users fill."""
