//! Tests of complete sessions in this process: through commands, ACP, the control API and the inspector.

mod acp_connection;
mod control;
mod failing_disk;
#[cfg(feature = "postgres")]
mod fleet;
mod full_disk;
mod inspect;
mod logged;
mod redteam;
mod session;
mod steps;
mod world;

#[global_allocator]
static ALLOCATOR: epitome_test_harness::allocations::CountingAllocator =
    epitome_test_harness::allocations::CountingAllocator;
