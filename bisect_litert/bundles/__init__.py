"""What can be sent upstream: each culprit alone, as small as it gets, with nobody's names in it."""
