"""From a response's text to what it is worth: the rule, the length penalty, and the killable process for a user's code."""
