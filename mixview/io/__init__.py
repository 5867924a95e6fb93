"""Reading and writing files that anybody may have written."""
