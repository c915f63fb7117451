//! `--carrier tcp`: the address at which the front end listens for its agents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

use iof_remote::Node;
use iof_remote::hosts::host_of;

use crate::error::{Failure, shown};

/// The largest number of ports behind that of `--carrier` at which spawned jobs listen while it is in use.
const MAX_SPAWN_PORTS: u16 = 64;

/// The value of `--carrier`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpCarrier {
    /// The address; `None` for the one from which the hosts are reached.
    address: Option<IpAddr>,
    /// The port; 0 for any.
    port: u16,
}

impl FromStr for TcpCarrier {
    type Err = String;

    fn from_str(text: &str) -> Result<TcpCarrier, String> {
        let place = match text.strip_prefix("tcp") {
            Some("") => return Ok(TcpCarrier { address: None, port: 0 }),
            rest => rest.and_then(|rest| rest.strip_prefix(':')).unwrap_or_default(),
        };
        let inner = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(place);
        let (address, port) = match (inner.parse::<IpAddr>(), place.parse::<SocketAddr>()) {
            (Ok(address), _) => (address, 0),
            (_, Ok(place)) => (place.ip(), place.port()),
            _ => return Err("expected tcp, tcp:ADDRESS or tcp:ADDRESS:PORT, such as tcp:10.0.0.1".into()),
        };
        if address.is_unspecified() || address.is_multicast() {
            return Err("expected one address of this node".into());
        }
        Ok(TcpCarrier { address: Some(address), port })
    }
}

impl TcpCarrier {
    /// Refuses an address that is not private, unless it `is_insecure`.
    pub fn check(&self, is_insecure: bool) -> Result<(), Failure> {
        self.address.map_or(Ok(()), |address| check(address, is_insecure))
    }

    /// Listens at the address, for agents on these nodes; if the job `is_spawned`, at the next port that is free.
    pub fn listen(
        &self,
        nodes: &[Node],
        is_insecure: bool,
        is_spawned: bool,
    ) -> Result<TcpListener, Failure> {
        let address = match self.address {
            Some(address) => address,
            None => own_address(nodes)?,
        };
        check(address, is_insecure)?;
        let others = if is_spawned { MAX_SPAWN_PORTS } else { 0 };
        let mut others = (1..=others).filter_map(|number| self.port.checked_add(number));
        let listener = TcpListener::bind((address, self.port));
        let next = |error| others.find_map(|port| TcpListener::bind((address, port)).ok()).ok_or(error);
        listener.or_else(next).map_err(|error| {
            Failure::Usage(format!(
                "--carrier: cannot listen at {}: {error}",
                SocketAddr::new(address, self.port)
            ))
        })
    }
}

fn check(address: IpAddr, is_insecure: bool) -> Result<(), Failure> {
    let is_private = match address.to_canonical() {
        IpAddr::V4(address) => address.is_private() || address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => {
            address.is_unique_local() || address.is_loopback() || address.is_unicast_link_local()
        }
    };
    if is_private || is_insecure {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "--carrier: {address} is not an address of a private network, and the connections are plain text: choose \
         another one with tcp:ADDRESS, or add --carrier-insecure"
    )))
}

/// Returns the address from which this node reaches the first of these nodes that is another one.
fn own_address(nodes: &[Node]) -> Result<IpAddr, Failure> {
    let mut found = None;
    for node in nodes {
        let address = source(&node.host).ok_or_else(|| {
            Failure::Usage(format!(
                "--carrier tcp: cannot tell from which address this node reaches {}: write tcp:ADDRESS with one \
                 that the nodes reach",
                shown(&node.host)
            ))
        })?;
        found = Some(address);
        if !address.is_loopback() {
            break;
        }
    }
    found.ok_or_else(|| Failure::usage("--carrier tcp: no nodes"))
}

/// Returns the address from which this node sends to a host. Nothing is sent.
fn source(host: &str) -> Option<IpAddr> {
    // Any port: it only matters to a route.
    let to = (host_of(host), 9).to_socket_addrs().ok()?.next()?;
    let from = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((from, 0)).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
