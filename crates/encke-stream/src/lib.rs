//! What a stream is: a deterministic state machine, commands in, records and effects out.
