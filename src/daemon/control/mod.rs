//! The control API: JSON-RPC over a local socket, one message a line.
