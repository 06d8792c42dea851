"""The engines that carry most of the catalogue: a head grouping, a pattern or a feature map made into a mechanism."""
