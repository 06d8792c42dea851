"""Models with any mechanism inside: encoder, decoder, both together, vision transformer, recurrent seq2seq."""
