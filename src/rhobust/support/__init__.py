"""Files, settings, signals and the console; nothing here is about learning."""
