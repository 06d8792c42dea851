"""Models with any mechanism: encoder, decoder, both together, vision transformer, recurrent seq2seq."""
