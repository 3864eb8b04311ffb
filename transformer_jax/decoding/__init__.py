"""Search over a function `(tokens, position, cache) -> (logits, cache)`.

Nothing here knows a model: `beam_search.beam_search` picks the next tokens, and
`translation.py` hands it the Transformer's step.
"""
