//! What a front end remembers, as tables.
