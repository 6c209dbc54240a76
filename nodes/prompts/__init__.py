"""The prompts: the papers' own, an app's own, demonstrations and evidence."""
