//! Callers: who makes a request, and what they may do.
