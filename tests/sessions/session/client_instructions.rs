//! Instructions that an editor provides for its session (`systemPrompt`).

use epitome::session::port::SessionPort as _;
use epitome::session::{Opening, Replay, SessionAnswer};
use epitome::thread::{ClientInstructions, StopReason};
use epitome_test_harness::session::TestSession;

fn instructions(text: &str, replaces_role: bool) -> Option<ClientInstructions> {
    Some(ClientInstructions { text: text.to_owned(), replaces_role })
}

/// A new session with these instructions.
fn with(instructions: Option<ClientInstructions>) -> TestSession {
    let mut test = TestSession::new(Vec::new());
    let opening = Opening { instructions, ..test.opening(&test.client, test.environment()) };
    test.create_with(opening);
    test
}

/// Opens the session again with the same client.
fn open_again(test: &mut TestSession, instructions: Option<ClientInstructions>) {
    let ticket = test.ticket();
    let opening = Opening { instructions, ..test.opening(&test.client, test.environment()) };
    test.sessions.attach(ticket, test.session.clone(), opening, Replay::Nothing);
    assert!(matches!(test.client.answer(ticket), Ok(SessionAnswer::Attached { .. })));
}

/// The system text of the next request.
fn system_text(test: &mut TestSession) -> String {
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    let system = test.last_request().body["system"].clone();
    let blocks = system.as_array().expect("blocks");
    blocks.iter().map(|block| block["text"].as_str().expect("text")).collect()
}

#[test]
fn they_follow_our_own_in_every_request_until_there_are_others() {
    let mut test = with(instructions("Answer in Welsh.", false));
    let first = system_text(&mut test);
    assert!(first.starts_with("You are Epitome") && first.ends_with("Answer in Welsh.\n"), "{first}");
    test.ask("/compact");
    assert_eq!(system_text(&mut test), first, "a compaction keeps them");
    test.reload(test.environment());
    assert_eq!(system_text(&mut test), first, "they are in the log");
    open_again(&mut test, instructions("Answer in Welsh.", false));
    assert_eq!(system_text(&mut test), first, "the same again changes nothing");
    open_again(&mut test, instructions("Answer in Irish.", false));
    assert_eq!(system_text(&mut test), first.replace("Welsh", "Irish"), "the rest stays to the byte");
    let opening = test.opening(&test.client, test.environment());
    test.session = test.sessions.fork(&test.session, None, &opening).expect("a fork");
    open_again(&mut test, None);
    assert_eq!(system_text(&mut test), first.replace("Welsh", "Irish"), "a fork has them, too");
}

#[test]
fn they_can_replace_the_description_of_our_role_and_nothing_else() {
    let mut test = with(instructions("You are a pirate.", true));
    let pirate = system_text(&mut test);
    assert!(pirate.starts_with("You are a pirate.\n\n# Where you work\n\nWorking directory: /"), "{pirate}");
    assert!(!pirate.contains("You are Epitome"));
    assert!(test.last_request().body["tools"].as_array().is_some_and(|tools| !tools.is_empty()));
    open_again(&mut test, instructions("Be brief.", false));
    let ours = system_text(&mut test);
    assert!(ours.starts_with("You are Epitome") && ours.ends_with("Be brief.\n"), "{ours}");
}
