"""From numbers to words: evidence, advice, how sure, the last word."""
