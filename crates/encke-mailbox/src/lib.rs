//! A bounded queue with lanes that is drained in batches.
