//! The real binary as an editor meets it: a process, two pipes, signals, and a scripted model on
//! loopback. These tests show that the wires connect and that ends are clean; what each part does in
//! detail is tested beside the part.

mod desk;

mod bulk;
mod ends;
mod kill;
mod life;
mod neighbours;
mod orphans;
