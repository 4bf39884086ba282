"""Plan → choose → submit → decode → place: turns byte ranges in files into one array."""
