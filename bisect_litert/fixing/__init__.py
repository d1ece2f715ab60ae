"""From diagnosis to a proven cure.

`engine` tries rewrites on a copy of the model (`trial`) and proves them by bisecting it again; `finishing` measures
what the result costs (`costing`, `stopwatch`) and how to run what is left (`placing`); `folder` leaves code behind
(`rewrites_file`, `patching`) and has it checked by another process (`check`); `run` does all that for a run folder.
"""
