"""Results derived from rows: crossover lengths, quality, Pareto fronts, recommendations. Contains no drawing code."""
