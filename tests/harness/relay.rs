//! The network between a machine and the database servers, which can be cut: bytes stop, connections stay. Its connections can
//! also be half closed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// See the module. Its threads end with their connections.
pub struct Relay {
    ports: Vec<u16>,
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    is_cut: Mutex<bool>,
    changed: Condvar,
    /// The machine's end of each connection.
    open: Mutex<Vec<TcpStream>>,
}

impl Line {
    fn wait(&self) {
        self.changed.wait_while(&mut self.is_cut.lock(), |is_cut| *is_cut);
    }
}

impl Relay {
    /// A port for each of these sockets.
    pub fn to(sockets: &[&Path]) -> Relay {
        let line = Arc::<Line>::default();
        let port = |socket: &&Path| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            let port = listener.local_addr().expect("it is bound").port();
            let (line, socket) = (line.clone(), socket.to_path_buf());
            std::thread::spawn(move || {
                for near in listener.incoming() {
                    let (near, line, socket) = (near.expect("a connection"), line.clone(), socket.clone());
                    std::thread::spawn(move || {
                        line.wait();
                        // A server that was killed refuses: the connection ends at once.
                        let Ok(far) = UnixStream::connect(socket) else { return };
                        line.open.lock().push(near.try_clone().expect("a handle"));
                        connect(near, far, &line);
                    });
                }
            });
            port
        };
        Relay { ports: sockets.iter().map(port).collect(), line }
    }

    /// The address of whichever of the servers accepts writes, as a user configures it.
    pub fn address(&self) -> String {
        let hosts: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("postgres://epitome@{}/postgres?target_session_attrs=read-write", hosts.join(","))
    }

    pub fn cut(&self) {
        *self.line.is_cut.lock() = true;
    }

    /// Ends the direction to the machine of each connection that is open now.
    pub fn half_close(&self) {
        for near in self.line.open.lock().drain(..) {
            // Its server may have ended it.
            drop(near.shutdown(Shutdown::Write));
        }
    }

    pub fn heal(&self) {
        *self.line.is_cut.lock() = false;
        self.line.changed.notify_all();
    }
}

fn connect(near: TcpStream, far: UnixStream, line: &Arc<Line>) {
    let (up, down) = (near.try_clone().expect("a handle"), far.try_clone().expect("a handle"));
    let there = line.clone();
    std::thread::spawn(move || {
        copy(&up, &down, &there);
        drop(down.shutdown(Shutdown::Both));
    });
    copy(&far, &near, line);
    drop(near.shutdown(Shutdown::Both));
}

fn copy(mut from: impl Read, mut to: impl Write, line: &Line) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        line.wait();
        if to.write_all(&bytes[..read]).is_err() {
            return;
        }
    }
}
