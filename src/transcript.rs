//! The fixture and recording format.
