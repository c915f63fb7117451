//! One hostile tool: its end of a connection.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use iof_engine::Engine;
use iof_proto::{Decoder, FromTool, PROTOCOL_VERSION, ToTool, encode, socket};
use memmap2::MmapMut;

/// A hostile tool's end of its connection.
pub struct Hostile {
    socket: UnixStream,
    decoder: Decoder<ToTool>,
    fds: VecDeque<OwnedFd>,
    page: Option<MmapMut>,
    inlets: Vec<MmapMut>,
}

impl Hostile {
    /// Connects to `engine`, sends a hello if it `greets`, and then waits for the welcome, because
    /// most other messages need it. Returns `None` if the engine closes the connection.
    pub fn connect(engine: &Engine, greets: bool) -> Option<Hostile> {
        let socket = UnixStream::connect(engine.socket().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut hostile =
            Hostile { socket, decoder: Decoder::new(), fds: VecDeque::new(), page: None, inlets: Vec::new() };
        if greets {
            let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: 1, name: "hostile".into() };
            hostile.send(&encode(&hello).unwrap());
            while hostile.page.is_none() {
                if !hostile.receive() {
                    return None;
                }
                thread::yield_now();
            }
        }
        Some(hostile)
    }

    /// Sends as much as the socket takes without waiting. The rest is lost, so the following bytes
    /// are garbage.
    pub fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match socket::send(&self.socket, bytes, &[]) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(_) => return,
            }
        }
    }

    /// Receives pending messages. Returns `false` if the connection is at its end.
    pub fn receive(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let count = match socket::receive(&self.socket, &mut chunk, &mut self.fds, true, false) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        };
        let mut bytes = &chunk[..count];
        while let Ok(Some(message)) = self.decoder.decode(&mut bytes) {
            // SAFETY: slices of the map are made only to write to it.
            let map = self.fds.pop_front().and_then(|file| unsafe { MmapMut::map_mut(&file) }.ok());
            match message {
                ToTool::Welcome { .. } => self.page = map,
                ToTool::PushBegun { .. } => self.inlets.extend(map),
                ToTool::Refused { .. } => return false,
                _ => {}
            }
            self.fds.clear();
        }
        true
    }

    pub fn scribble(&mut self, offset: u16, bytes: [u8; 8]) {
        if let Some(page) = &mut self.page {
            let start = usize::from(offset) % (page.len().min(8192) / 8) * 8;
            page[start..start + 8].copy_from_slice(&bytes);
        }
        for inlet in &mut self.inlets {
            let start = usize::from(offset) % (inlet.len() / 8) * 8;
            inlet[start..start + 8].copy_from_slice(&bytes);
        }
    }
}
