//! What tests of whole sessions and of the program share.

pub mod own_process;
