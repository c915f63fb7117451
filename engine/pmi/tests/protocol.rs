//! The protocol as ranks see it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use iof_pmi::{
    Event, MAX_LINE, MAX_NEWS, MAX_SPACE_OF_RANK, MAX_SPAWN_BYTES, MAX_VALUE, ProtocolError, Server,
    ServiceAction, SpawnApp, SpawnCommand, variables,
};
use proptest::prelude::*;

/// Passes bytes of `rank` to the server. Returns the events, unless the rank breaks the protocol.
fn receive(server: &mut Server, rank: u32, bytes: &[u8]) -> Result<Vec<Event>, ProtocolError> {
    let mut events = Vec::new();
    server.receive(rank, bytes, &mut events).map(|()| events)
}

/// Sends a line of `rank`. Returns the reply; empty if the rank waits.
fn ask(server: &mut Server, rank: u32, line: &str) -> String {
    receive(server, rank, format!("{line}\n").as_bytes()).unwrap();
    take_reply(server, rank)
}

fn take_reply(server: &mut Server, rank: u32) -> String {
    let reply = String::from_utf8(server.unsent(rank).to_vec()).unwrap();
    server.sent(rank, reply.len());
    reply
}

/// A server of a job of two programs, whose ranks have begun.
fn begun(apps: &[u32]) -> Server {
    let mut server = Server::new("space-1", apps);
    for rank in 0..apps.iter().sum() {
        let reply = ask(&mut server, rank, "cmd=init pmi_version=1 pmi_subversion=1");
        assert_eq!(reply, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
    }
    server
}

#[test]
fn a_rank_learns_its_job() {
    let mut server = begun(&[2, 1]);
    for (line, reply) in [
        ("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=960\n"),
        ("cmd=get_appnum", "cmd=appnum rc=0 appnum=1\n"),
        ("cmd=get_universe_size", "cmd=universe_size rc=0 size=3\n"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=space-1\n"),
        ("cmd=get kvsname=space-1 key=PMI_process_mapping", "cmd=get_result rc=0 value=(vector,(0,1,3))\n"),
        ("cmd=get kvsname=space-1 key=other", "cmd=get_result rc=1 msg=key_not_found\n"),
        ("cmd=get kvsname=space-2 key=PMI_process_mapping", "cmd=get_result rc=1 msg=key_not_found\n"),
        ("cmd=put kvsname=space-2 key=a value=b", "cmd=put_result rc=1 msg=unknown_kvsname\n"),
        (
            "cmd=put kvsname=space-1 key=PMI_process_mapping value=b",
            "cmd=put_result rc=1 msg=duplicate_key\n",
        ),
        ("cmd=finalize", "cmd=finalize_ack rc=0\n"),
    ] {
        assert_eq!(ask(&mut server, 2, line), reply, "{line}");
    }
    assert_eq!(variables(1, 3, (1, 3)).map(|(_, value)| value), ["1", "3", "1", "3"]);
}

#[test]
fn ranks_learn_the_file_of_the_topology_if_its_name_can_be_sent() {
    let ask_with = |file: &str| {
        let mut server = begun(&[1]);
        server.set_topology(file);
        ask(&mut server, 0, "cmd=get kvsname=space-1 key=PMI_hwloc_xmlfile")
    };
    assert_eq!(ask_with("/tmp/t.xml"), "cmd=get_result rc=0 value=/tmp/t.xml\n");
    for file in ["/tmp/a b", "/tmp/a\nb", &"/a".repeat(480)] {
        assert_eq!(ask_with(file), "cmd=get_result rc=1 msg=key_not_found\n");
    }
}

#[test]
fn what_a_rank_puts_before_the_barrier_others_get_after_it() {
    let mut server = begun(&[3]);
    server.take_answered();
    for rank in 0..3 {
        let put = format!("cmd=put kvsname=space-1 key=card-{rank} value=address {rank}");
        assert_eq!(ask(&mut server, rank, &put), "cmd=put_result rc=0\n");
    }
    for _ in 0..2 {
        server.take_answered();
        assert_eq!(ask(&mut server, 2, "cmd=barrier_in"), "");
        assert_eq!(ask(&mut server, 0, "cmd=barrier_in"), "");
        assert_eq!(server.take_answered(), []);
        assert_eq!(ask(&mut server, 1, "cmd=barrier_in"), "cmd=barrier_out rc=0\n");
        assert_eq!(server.take_answered(), [0, 1, 2]);
        assert_eq!([0, 2].map(|rank| take_reply(&mut server, rank)), ["cmd=barrier_out rc=0\n"; 2]);
    }
    let value = ask(&mut server, 0, "cmd=get kvsname=space-1 key=card-2");
    assert_eq!(value, "cmd=get_result rc=0 value=address 2\n");
}

#[test]
fn a_request_about_a_service_waits_for_the_launchers_answer_and_delays_no_other_rank() {
    let service = |action| [Event::Service { rank: 0, service: "x".into(), action }];
    let asked = [
        (
            "publish",
            "service=x port=tag#0 a",
            ServiceAction::Publish("tag#0 a".into()),
            Ok(None),
            "info=ok rc=0",
        ),
        ("lookup", "service=x", ServiceAction::Lookup, Ok(Some("tag#0 a")), "info=ok rc=0 port=tag#0 a"),
        (
            "lookup",
            "service=x",
            ServiceAction::Lookup,
            Ok(Some("a\nb")),
            "info=error rc=1 msg=published_by_PMIx,_but_not_as_a_port",
        ),
        (
            "unpublish",
            "service=x",
            ServiceAction::Unpublish,
            Err("not\nhere"),
            "info=error rc=1 msg=not_here",
        ),
    ];
    for (command, words, action, answer, reply) in asked {
        let mut server = begun(&[2]);
        let line = format!("cmd={command}_name {words}\n");
        assert_eq!(receive(&mut server, 0, line.as_bytes()).unwrap(), service(action));
        assert!(server.unsent(0).is_empty());
        assert_eq!(ask(&mut server, 1, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0\n");
        let answer = answer.map(|port| port.map(String::from)).map_err(String::from);
        server.answer(0, answer.clone());
        assert_eq!(take_reply(&mut server, 0), format!("cmd={command}_result {reply}\n"));
        server.answer(0, answer);
        assert!(server.unsent(0).is_empty(), "it waits no longer");
        receive(&mut server, 0, line.as_bytes()).unwrap();
        let early = receive(&mut server, 0, b"cmd=get_appnum\n");
        assert_eq!(early, Err(ProtocolError::NotInStep), "a rank asks one thing at a time");
    }
}

#[test]
fn the_launcher_learns_of_begin_end_and_abort() {
    let mut server = Server::new("space", &[1]);
    let mut events = |bytes: &[u8]| {
        let events = receive(&mut server, 0, bytes).unwrap();
        server.sent(0, usize::MAX);
        events
    };
    assert_eq!(events(b"cmd=init pmi_version=1 "), []);
    assert_eq!(events(b"pmi_subversion=1\n"), [Event::Initialized { rank: 0 }]);
    assert_eq!(events(b"cmd=finalize\n"), [Event::Finalized { rank: 0 }]);
    let abort = b"cmd=abort exitcode=7 message=out of cheese\n";
    assert_eq!(events(abort), [Event::Aborted { rank: 0, code: 7 }]);
    assert_eq!(receive(&mut server, 0, abort), Err(ProtocolError::Aborted));
}

#[test]
fn requests_before_one_that_breaks_the_protocol_have_their_events() {
    let mut server = begun(&[1]);
    server.sent(0, usize::MAX);
    let mut events = Vec::new();
    let abort = b"cmd=abort exitcode=7\ncmd=abort exitcode=8\n";
    assert_eq!(server.receive(0, abort, &mut events), Err(ProtocolError::Aborted));
    assert_eq!(events, [Event::Aborted { rank: 0, code: 7 }]);
}

#[test]
fn a_rank_may_abort_while_it_is_in_the_barrier() {
    let mut server = begun(&[2]);
    assert_eq!(ask(&mut server, 0, "cmd=barrier_in"), "");
    let events = receive(&mut server, 0, b"cmd=abort exitcode=2\n").unwrap();
    assert_eq!(events, [Event::Aborted { rank: 0, code: 2 }]);
}

/// The lines of one of two programs of a request to spawn a job.
fn spawn_block(number: u32, further: &str) -> String {
    format!(
        "mcmd=spawn\nnprocs={number}\nexecname=./a b\ntotspawns=2\nspawnssofar={number}\nargcnt=2\narg1=x=y z\narg2=\n\
         preput_num=1\npreput_key_0=parent\npreput_val_0=tag#0$ =\ninfo_num=1\ninfo_key_0=wdir\ninfo_val_0=/tmp\n{further}endcmd\n"
    )
}

#[test]
fn a_request_to_spawn_is_an_event_after_its_last_program_and_waits_for_the_answer() {
    let app = |ranks| SpawnApp {
        program: "./a b".into(),
        args: vec!["x=y z".into(), String::new()],
        ranks,
        infos: vec![("wdir".into(), "/tmp".into())],
    };
    let values = [("parent".into(), "tag#0$ =".into())].into();
    let request = SpawnCommand { apps: vec![app(1), app(2)], values };
    let mut server = begun(&[1]);
    server.sent(0, usize::MAX);
    for (answer, reply) in [
        (Ok(None), "cmd=spawn_result info=ok rc=0\n"),
        (Err("no such\nfile".into()), "cmd=spawn_result info=error rc=1 msg=no_such_file\n"),
    ] {
        assert_eq!(receive(&mut server, 0, spawn_block(1, "").as_bytes()), Ok(Vec::new()));
        let events = receive(&mut server, 0, spawn_block(2, "").as_bytes()).unwrap();
        assert_eq!(events, [Event::Spawn { rank: 0, request: request.clone() }]);
        assert_eq!(take_reply(&mut server, 0), "");
        server.answer(0, answer);
        assert_eq!(take_reply(&mut server, 0), reply);
    }
    let mut child = Server::new("space-2", &[1]);
    child.preset(&[("PMI_process_mapping".into(), "x".into()), ("a\n".into(), "x".into())].into());
    child.preset(&request.values);
    ask(&mut child, 0, "cmd=init pmi_version=1 pmi_subversion=1");
    let value = |child: &mut Server, key| ask(child, 0, &format!("cmd=get kvsname=space-2 key={key}"));
    assert_eq!(value(&mut child, "parent"), "cmd=get_result rc=0 value=tag#0$ =\n");
    assert_eq!(value(&mut child, "PMI_process_mapping"), "cmd=get_result rc=0 value=(vector,(0,1,1))\n");
}

#[test]
fn a_request_to_spawn_with_a_line_that_is_not_understood_is_refused_after_its_last_program() {
    for line in ["rest of an argument\n", "cmd=abort\n", "preput_key_1=a\npreput_val_1=\u{1}\n"] {
        let mut server = begun(&[1]);
        assert_eq!(ask(&mut server, 0, spawn_block(1, line).trim_end()), "");
        let reply = ask(&mut server, 0, spawn_block(2, "").trim_end());
        assert_eq!(reply, "cmd=spawn_result info=error rc=1 msg=line_not_understood\n");
        assert_eq!(ask(&mut server, 0, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0\n");
    }
    let mut server = begun(&[1]);
    server.sent(0, usize::MAX);
    let error = receive(&mut server, 0, b"mcmd=spawn\nnprocs=-1\n");
    assert_eq!(error, Err(ProtocolError::Word { command: "spawn".into(), key: "nprocs" }));
}

#[test]
fn a_spawn_without_end_is_refused() {
    let mut server = begun(&[1]);
    server.sent(0, usize::MAX);
    assert_eq!(receive(&mut server, 0, b"mcmd=spawn\n"), Ok(Vec::new()));
    let mut sent = 0;
    let error = loop {
        match receive(&mut server, 0, &[b'\n'; 1024]) {
            Ok(_) => sent += 1024,
            Err(error) => break error,
        }
    };
    assert_eq!((error, sent), (ProtocolError::SpawnTooLong, MAX_SPAWN_BYTES));
}

#[test]
fn a_version_that_is_not_served_is_refused_and_may_be_lowered() {
    let mut server = Server::new("space", &[1]);
    let reply = ask(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0");
    assert_eq!(reply, "cmd=response_to_init rc=1 pmi_version=1 pmi_subversion=1\n");
    assert!(ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1").contains("rc=0"));
}

#[test]
fn requests_out_of_step_are_errors() {
    let mut server = Server::new("space", &[2]);
    assert_eq!(receive(&mut server, 0, b"cmd=get_maxes\n"), Err(ProtocolError::NotInitialized));
    assert_eq!(receive(&mut server, 7, b"x"), Err(ProtocolError::Rank { rank: 7, size: 2 }));
    let mut server = begun(&[2]);
    assert_eq!(receive(&mut server, 0, b"cmd=get_maxes\ncmd=get_maxes\n"), Err(ProtocolError::NotInStep));
    assert_eq!(ask(&mut server, 1, "cmd=barrier_in"), "");
    assert_eq!(receive(&mut server, 1, b"cmd=get_maxes\n"), Err(ProtocolError::NotInStep));
    let mut server = begun(&[1]);
    assert!(ask(&mut server, 0, "cmd=finalize").contains("rc=0"));
    assert_eq!(receive(&mut server, 0, b"cmd=get_maxes\n"), Err(ProtocolError::NotInitialized));
    let mut server = begun(&[1]);
    let init = b"cmd=init pmi_version=1 pmi_subversion=1\n";
    assert_eq!(receive(&mut server, 0, init), Err(ProtocolError::NotInitialized));
}

#[test]
fn a_rank_may_begin_again_after_its_end() {
    let mut server = begun(&[1]);
    for _ in 0..2 {
        assert!(ask(&mut server, 0, "cmd=put kvsname=space-1 key=a value=b").contains("rc=0"));
        assert!(ask(&mut server, 0, "cmd=finalize").contains("rc=0"));
        assert!(ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1").contains("rc=0"));
    }
}

#[test]
fn replies_fit_the_room_of_clients() {
    let mut server = begun(&[1]);
    let value = "v".repeat(MAX_VALUE - 1);
    assert_eq!(
        ask(&mut server, 0, &format!("cmd=put kvsname=space-1 key=k value={value}")),
        "cmd=put_result rc=0\n"
    );
    let reply = ask(&mut server, 0, "cmd=get kvsname=space-1 key=k");
    assert!(reply.ends_with(&format!("={value}\n")) && reply.len() < 1024);
}

proptest! {
    #[test]
    fn garbage_of_a_rank_harms_only_itself(pieces in prop::collection::vec(any::<Vec<u8>>(), 0..20)) {
        let mut server = begun(&[2]);
        for bytes in pieces {
            if receive(&mut server, 0, &bytes).is_err() {
                break;
            }
            server.sent(0, usize::MAX);
        }
        prop_assert!(server.unsent(0).len() <= MAX_LINE + MAX_SPACE_OF_RANK);
        prop_assert_eq!(ask(&mut server, 1, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0\n");
    }
}

/// The servers of two nodes, with ranks 0 and 2, and rank 1.
fn nodes() -> [Server; 2] {
    [&[0, 2][..], &[1]].map(|ranks| {
        let mut server = Server::new("space-1", &[3]).part(|rank| ranks.contains(&rank), "(vector,(0,2,1))");
        for rank in ranks {
            ask(&mut server, *rank, "cmd=init pmi_version=1 pmi_subversion=1");
        }
        server
    })
}

fn put(server: &mut Server, rank: u32, key: &str, value: &str) -> String {
    ask(server, rank, &format!("cmd=put kvsname=space-1 key={key} value={value}"))
}

fn get(server: &mut Server, rank: u32, key: &str) -> String {
    ask(server, rank, &format!("cmd=get kvsname=space-1 key={key}"))
}

#[test]
fn ranks_of_a_part_have_what_ranks_of_other_nodes_have_put_before_the_barrier() {
    let [mut here, mut there] = nodes();
    assert_eq!(get(&mut there, 1, "PMI_process_mapping"), "cmd=get_result rc=0 value=(vector,(0,2,1))\n");
    assert_eq!(ask(&mut here, 2, "cmd=get_universe_size"), "cmd=universe_size rc=0 size=3\n");
    for round in 0..2 {
        assert_eq!(put(&mut here, 2, "card-2", &format!("a {round}=b")), "cmd=put_result rc=0\n");
        assert_eq!(put(&mut there, 1, "card-1", "c"), "cmd=put_result rc=0\n");
        assert_eq!((ask(&mut here, 0, "cmd=barrier_in"), here.take_fence()), (String::new(), None));
        let values = [(2, &mut here), (1, &mut there)].map(|(rank, server)| {
            assert_eq!(ask(server, rank, "cmd=barrier_in"), "");
            (server.take_fence().unwrap(), server.take_fence())
        });
        let [(mut all, None), (others, None)] = values else { panic!("a fence is due twice") };
        all.extend(others);
        for (server, ranks) in [(&mut here, &[0, 2][..]), (&mut there, &[1])] {
            server.take_answered();
            assert_eq!((server.fenced(Ok(&all)), server.take_answered()), (Ok(()), ranks.to_vec()));
            ranks.iter().for_each(|rank| assert_eq!(take_reply(server, *rank), "cmd=barrier_out rc=0\n"));
        }
        let value = format!("cmd=get_result rc=0 value=a {round}=b\n");
        assert_eq!(get(&mut there, 1, "card-2"), value);
        assert_eq!(get(&mut here, 0, "card-1"), "cmd=get_result rc=0 value=c\n");
    }
    // Nothing is sent twice.
    ask(&mut there, 1, "cmd=barrier_in");
    assert_eq!(there.take_fence(), Some(Vec::new()));
}

#[test]
fn values_of_other_nodes_that_are_not_valid_fail_the_barrier_and_leave_those_here() {
    for (values, reason) in [
        ("1 same b\n", "the value of key same of rank 1: duplicate_key"),
        ("1 PMI_process_mapping x\n", "the value of key PMI_process_mapping of rank 1: duplicate_key"),
        ("3 a b\n", "a value of another node is not one"),
        ("x a b\n", "a value of another node is not one"),
        ("1 a\n", "a value of another node is not one"),
        ("1 a \u{1}\n", "the value of key a of rank 1: invalid_key_or_value"),
    ] {
        let [mut here, _] = nodes();
        put(&mut here, 0, "same", "a");
        assert_eq!([0, 2].map(|rank| ask(&mut here, rank, "cmd=barrier_in")), [""; 2]);
        here.take_fence().unwrap();
        assert_eq!(here.fenced(Ok(values.as_bytes())), Err(reason.into()));
        let failed = "cmd=barrier_out rc=1 msg=values_not_exchanged\n";
        assert_eq!([0, 2].map(|rank| take_reply(&mut here, rank)), [failed; 2]);
        assert_eq!(get(&mut here, 2, "same"), "cmd=get_result rc=0 value=a\n");
    }
    // Nodes may put the same value under the same key.
    let [mut here, _] = nodes();
    put(&mut here, 0, "same", "a");
    assert_eq!(here.fenced(Ok(b"1 same a\n")), Ok(()));
}

#[test]
fn ranks_of_a_part_put_no_more_between_two_barriers_than_a_node_may_send() {
    let mut server = Server::new("space-1", &[101]).part(|rank| rank < 100, "");
    let value = "v".repeat(MAX_VALUE - 1);
    let mut refused = 0;
    for rank in 0..100 {
        ask(&mut server, rank, "cmd=init pmi_version=1 pmi_subversion=1");
        let keys = (0..200).take_while(|key| {
            put(&mut server, rank, &format!("{rank}-{key}"), &value) == "cmd=put_result rc=0\n"
        });
        refused += usize::from(keys.count() < 200);
        ask(&mut server, rank, "cmd=barrier_in");
    }
    let values = server.take_fence().unwrap();
    assert!(refused > 0 && values.len() <= MAX_NEWS && values.len() > MAX_NEWS - 2000);
}
