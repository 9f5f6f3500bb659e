//! Worker pools: round_robin, hash, random, direct, claim. Picks run in the caller.
