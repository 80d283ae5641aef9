//! A client that has a session open in the daemon, like an editor.

use std::io::{BufRead as _, BufReader};
use std::sync::mpsc::{Receiver, channel};

use epitome::daemon::control::EnvironmentObject;
use epitome::daemon::front::attach::Connector;
use epitome::session::registry::Overrides;
use epitome::session::{AskId, UserDecision};
use epitome::thread::{Content, SessionId};
use epitome_client::{
    ClientEvent, OpenedSession, QuestionForms, SessionClient, SessionMessage, SessionRequest,
};
use epitome_test_harness::WITHIN;

use super::process::Home;

/// See the module's documentation.
pub struct Editor {
    client: SessionClient<()>,
    lines: Receiver<Vec<u8>>,
    pub session: SessionId,
}

impl Editor {
    /// Opens this session, or a new one.
    pub fn new(home: &Home, session: Option<&str>) -> Editor {
        let pair = |(name, value): (String, String)| (name.into(), value.into());
        let environment = EnvironmentObject(home.keys().into_iter().map(pair).collect());
        let connector = Connector::new(&home.user.paths(), environment, Overrides::default());
        let link = connector.expect("this program").attach_running().expect("it is ours").expect("it runs");
        let stream = link.into_stream().expect("nothing was sent");
        let connected = SessionClient::connect(stream, "editor", QuestionForms::Unsupported);
        let (mut client, mut reader): (_, BufReader<_>) = connected.expect("the same build");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while let Ok(1..) = reader.read_until(b'\n', &mut line) {
                // A finished test has dropped the receiver.
                drop(sender.send(std::mem::take(&mut line)));
            }
        });
        let request = SessionRequest { cwd: home.user.project(), ..SessionRequest::default() };
        match session {
            Some(session) => client.resume(&SessionId(session.to_owned()), &request, false, ()),
            None => client.create(&request, ()),
        }
        let mut editor = Editor { client, lines, session: SessionId(session.unwrap_or_default().to_owned()) };
        let answer = loop {
            if let SessionMessage::Answer((), answer) = editor.next() {
                break answer;
            }
        };
        let opened = answer.and_then(OpenedSession::read).expect("it is open");
        if let Some(session) = opened.session {
            editor.session = session;
        }
        editor
    }

    pub fn prompt(&mut self, text: &str) {
        let content = vec![Content::Text { text: text.to_owned() }];
        self.client.prompt(&self.session, content, ());
    }

    pub fn decide(&mut self, ask: AskId, decision: UserDecision) {
        self.client.decide(ask, &decision);
    }

    /// Waits for an event.
    pub fn until<T>(&mut self, wanted: impl Fn(&ClientEvent) -> Option<T>) -> T {
        loop {
            if let SessionMessage::Event(event) = self.next()
                && let Some(found) = wanted(&event)
            {
                return found;
            }
        }
    }

    fn next(&mut self) -> SessionMessage<()> {
        let line = self.lines.recv_timeout(WITHIN).expect("a line in time");
        self.client.receive(&line)
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        self.client.close();
    }
}
