"""From a response's text to its worth: the rule, the length penalty, and killable processes for a user's code."""
