"""The commands, one file each, and the options that they share."""
