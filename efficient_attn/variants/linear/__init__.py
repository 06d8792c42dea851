"""Softmax's exp(q.k) replaced by a product of features: one engine, and the feature maps that papers have named."""
