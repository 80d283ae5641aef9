//! The Agent Client Protocol: the only place that names wire types.

pub mod connection;
pub mod from_wire;
pub mod outlet;
pub mod server;
pub mod to_wire;
