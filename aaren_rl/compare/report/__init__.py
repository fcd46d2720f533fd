"""The report of a comparison: its words, tables and figures, as HTML and Markdown."""
