//! The agent loop as a state machine.
