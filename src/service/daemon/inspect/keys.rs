//! Credentials of the page: a link's single-use ticket is exchanged for a cookie. Each is 256 random bits.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::token::{is_same, secret};

/// Time after which an unopened link expires.
const TICKET_LIFE: Duration = Duration::from_secs(5 * 60);

/// Unopened links that are valid at once; the oldest is dropped.
const TICKETS_MAX: usize = 16;

/// The secrets of one running page.
#[derive(Debug)]
pub struct Keys {
    /// The folder that contains all URLs of the page. Browsers send a cookie to every port of a host, but
    /// only below its path, so that other servers on this machine don't get ours.
    folder: String,
    cookie: String,
    tickets: Mutex<VecDeque<(String, Instant)>>,
}

impl Keys {
    pub fn new() -> io::Result<Keys> {
        let folder = secret()?[..16].to_owned();
        Ok(Keys { folder, cookie: secret()?, tickets: Mutex::default() })
    }

    /// The path of the page, with leading and trailing slash.
    pub fn folder(&self) -> String {
        format!("/{}/", self.folder)
    }

    /// Creates a ticket.
    pub fn ticket(&self, now: Instant) -> io::Result<String> {
        let ticket = secret()?;
        let mut tickets = self.tickets.lock();
        tickets.push_back((ticket.clone(), now));
        while tickets.len() > TICKETS_MAX {
            tickets.pop_front();
        }
        Ok(ticket)
    }

    /// Whether this is a valid, unused ticket; it is used up by this call.
    pub fn redeem(&self, shown: &str, now: Instant) -> bool {
        let mut tickets = self.tickets.lock();
        tickets.retain(|(_, since)| now.duration_since(*since) < TICKET_LIFE);
        match tickets.iter().position(|(ticket, _)| is_same(ticket, shown)) {
            Some(at) => tickets.remove(at).is_some(),
            None => false,
        }
    }

    /// The value of the `Set-Cookie` header.
    pub fn set_cookie(&self, port: u16) -> String {
        format!("{}={}; Path={}; HttpOnly; SameSite=Strict", name(port), self.cookie, self.folder())
    }

    /// Whether a `Cookie` header contains our cookie.
    pub fn is_known(&self, cookies: &str, port: u16) -> bool {
        let name = name(port);
        let pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.into_iter().any(|(key, value)| key == name && is_same(value, &self.cookie))
    }
}

/// Name of the cookie; the port keeps the pages of several homes apart.
fn name(port: u16) -> String {
    format!("epitome_inspect_{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_valid_once_and_expires() {
        let keys = Keys::new().expect("random numbers");
        let now = Instant::now();
        let ticket = keys.ticket(now).expect("random numbers");
        assert!(!keys.redeem("another", now));
        assert!(keys.redeem(&ticket, now));
        assert!(!keys.redeem(&ticket, now));
        let late = keys.ticket(now).expect("random numbers");
        assert!(!keys.redeem(&late, now + TICKET_LIFE));
    }

    #[test]
    fn only_the_newest_tickets_stay_valid() {
        let keys = Keys::new().expect("random numbers");
        let now = Instant::now();
        let tickets: Vec<String> =
            (0..=TICKETS_MAX).map(|_| keys.ticket(now).expect("random numbers")).collect();
        assert!(!keys.redeem(&tickets[0], now));
        assert!(keys.redeem(&tickets[1], now));
    }

    #[test]
    fn only_our_cookie_is_accepted() {
        let keys = Keys::new().expect("random numbers");
        let set = keys.set_cookie(80);
        let ours = set.split(';').next().expect("a cookie").to_owned();
        assert!(keys.is_known(&ours, 80));
        assert!(keys.is_known(&format!("a=b; {ours}; c=d"), 80));
        assert!(!keys.is_known(&ours, 81));
        assert!(!keys.is_known("epitome_inspect_80=", 80));
        assert!(!keys.is_known("", 80));
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    }
}
