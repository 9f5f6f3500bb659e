//! `encke import`: copies streams of another server, whatever fails and whoever is killed, and knows what offsets have become.

mod following;
mod importer;
mod killed;

use std::fs::File;
use std::io::Write;

use tempfile::TempDir;

use crate::faulty_server::{FaultyServer, Manners};
use crate::rig::{Encke, Ended, JSON, command, path};
use importer::{Importer, append, contents, same, streams_of};

#[test]
fn streams_of_one_server_are_copied_to_another() {
    let (from, to) = (Encke::start(&[]), Encke::start(&[]));
    const TEXT: &str = "Content-Type: text/plain; charset=utf-8";
    const BINARY: &str = "Content-Type: application/x-any";
    let put = |stream: &str, fields: &[&str]| {
        let made = from.ask("PUT", &path(stream), fields, b"");
        assert_eq!(made.status, 201, "{made:?}");
    };
    put("chat/ann", &[JSON, "Stream-TTL: 3600"]);
    for number in 0..200 {
        append(
            &from,
            "chat/ann",
            JSON,
            format!("[{{\"n\" : {number}}}, [{number}]]").as_bytes(),
        );
    }
    put("text", &[TEXT, "Stream-Expires-At: 2100-01-01T00:00:00Z"]);
    for part in ["a\r\nb\r", "\n", "caf\u{e9}"] {
        append(&from, "text", TEXT, part.as_bytes());
    }
    // A character that is cut.
    let last = append(&from, "text", TEXT, &"\u{1f600}".as_bytes()[..3]);
    put("bytes", &[BINARY]);
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .map(|at| (at.wrapping_mul(at) % 251) as u8)
        .collect();
    append(&from, "bytes", BINARY, &bytes);
    let closed = from.ask("POST", &path("bytes"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204);
    put("empty", &[JSON]);

    let importer = Importer::new(streams_of(&from), &to);
    let names = ["chat/ann", "text", "bytes", "empty"];
    let report = importer.run(&[&names[..], &["--verify"]].concat());
    assert_eq!(
        (&report["complete"], &report["streams"]),
        (&true.into(), &4.into()),
        "{report}"
    );
    assert_eq!(report["of_streams"][0]["records"], 400);
    assert_eq!(report["of_streams"][2]["outcome"], "closed");
    for name in names {
        assert!(same(&from, &to, name), "{name} differs");
        let head = |encke: &Encke| {
            let head = encke.ask("HEAD", &path(name), &[], b"");
            let field = |name: &str| head.field(name).map(str::to_owned);
            [
                "Content-Type",
                "Stream-TTL",
                "Stream-Expires-At",
                "Stream-Closed",
            ]
            .map(field)
        };
        assert_eq!(head(&from), head(&to), "{name}");
    }

    let mapped = importer.offset(&["text", &last]);
    assert_eq!(mapped.code, Some(0), "{mapped:?}");
    assert!(contents(&to, "text", mapped.stdout.trim()).is_empty());
    let again = importer.run(&names);
    assert_eq!(
        (&again["complete"], &again["records_copied"]),
        (&true.into(), &0.into())
    );
}

#[test]
fn an_offset_inside_a_page_is_resolved_with_the_source() {
    let (from, to) = (Encke::start(&[]), Encke::start(&[]));
    for (stream, content_type) in [("j", JSON), ("t", "Content-Type: text/plain")] {
        let made = from.ask("PUT", &path(stream), &[content_type], b"");
        assert_eq!(made.status, 201);
        let offsets: Vec<String> = (10..40)
            .map(|number| append(&from, stream, content_type, format!("{number}").as_bytes()))
            .collect();
        let importer = Importer::new(streams_of(&from), &to);
        importer.run(&[stream]);
        // The source may go on; nothing of that is copied.
        append(&from, stream, content_type, b"77");

        let near = importer.offset(&[stream, &offsets[7]]);
        assert_eq!(near.code, Some(1), "{near:?}");
        // From the beginning.
        let all = contents(&to, stream, near.stdout.trim());
        assert!(all == contents(&to, stream, "-1"), "{near:?}");
        assert!(
            near.stderr.contains("--resolve asks the source"),
            "{near:?}"
        );
        for (offset, count) in [(&offsets[7], 22), (&offsets[0], 29), (&offsets[29], 0)] {
            let asked = importer.offset(&[stream, offset, "--resolve"]);
            assert_eq!(asked.code, Some(0), "{asked:?}");
            let left = contents(&to, stream, asked.stdout.trim());
            let wanted: Vec<String> = (40 - count..40).map(|number| number.to_string()).collect();
            let wanted = match stream {
                "j" => format!("[{}]", wanted.join(",")),
                _ => wanted.concat(),
            };
            assert_eq!(String::from_utf8_lossy(&left), wanted);
        }
        let beyond = append(&from, stream, content_type, b"78");
        let asked = importer.offset(&[stream, &beyond]);
        assert_eq!(
            (asked.code, asked.stdout.as_str()),
            (Some(1), ""),
            "{asked:?}"
        );
        assert!(
            asked.stderr.contains("behind the end of what was copied"),
            "{asked:?}"
        );
    }
}

#[test]
fn all_streams_of_an_encke_are_listed_and_copied() {
    let (from, to) = (Encke::start(&[]), Encke::start(&[]));
    // The last name has a percent sign that looks like an escape.
    for stream in ["chat/1", "chat/2", "other", "chat/50%2541%20c%C3%A9"] {
        from.create(stream);
        append(&from, stream, JSON, b"1");
    }
    let importer = Importer::new(streams_of(&from), &to);
    let report = importer.run(&["--list=chat/", "--verify"]);
    assert_eq!(
        (&report["streams"], &report["complete"]),
        (&3.into(), &true.into()),
        "{report}"
    );
    assert_eq!(to.numbers("chat/50%2541%20c%C3%A9"), [1]);
    assert_eq!(to.ask("HEAD", &path("other"), &[], b"").status, 404);
    let report = importer.run(&["--list"]);
    assert_eq!(
        (&report["streams"], &report["records_copied"]),
        (&4.into(), &1.into()),
        "{report}"
    );
}

#[test]
fn what_is_missing_is_named_and_has_an_exit_code() {
    let (from, to) = (Encke::start(&[]), Encke::start(&[]));
    from.create("a");
    let importer = Importer::new(streams_of(&from), &to);
    let ended = Ended::of(&mut importer.command(&["a", "missing"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("missing: FAILED: "), "{ended:?}");
    assert!(
        ended.stdout.contains("1 of 2 streams complete, 1 FAILED"),
        "{ended:?}"
    );
    let (code, head) = (ended.code, to.ask("HEAD", &path("missing"), &[], b""));
    assert_eq!((code, head.status), (Some(1), 404));

    // Somebody else appends at the destination.
    append(&to, "a", JSON, b"1");
    append(&from, "a", JSON, b"[2,3]");
    let ended = Ended::of(&mut importer.command(&["a"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stdout.contains("that are not those of the source"),
        "{ended:?}"
    );
    assert_eq!(to.numbers("a"), [1]);

    let mut running = importer.start(&["a", "--follow", "--prefix", "other/"]);
    running.wait_until_it_follows();
    let ended = Ended::of(&mut importer.command(&["a"]));
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("another import runs with it"),
        "{ended:?}"
    );
}

#[test]
fn tokens_come_from_files_and_variables() {
    let manners = Manners {
        seed: 1,
        faults_of_100: 0,
        page_records: 5,
    };
    let (from, to) = (FaultyServer::start(manners), FaultyServer::start(manners));
    from.create("a", "text/plain");
    from.append("a", vec![b"text".to_vec()]);
    from.ask_for_token("of-source");
    to.ask_for_token("of-destination");
    let directory = TempDir::new().expect("the temporary directory can be written");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        let mut file = File::create(&path).expect("a file can be made");
        file.write_all(text.as_bytes()).expect("it can be written");
        path
    };
    let (fields, token) = (
        write("fields", "Authorization: Bearer of-source\n"),
        write("token", "of-destination\n"),
    );
    let import = |state: &str| {
        let mut command = command(&["import", &from.url(), "a", "--to", &to.url()]);
        command.arg("--state").arg(directory.path().join(state));
        command
    };
    let none = Ended::of(&mut import("1"));
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stdout.contains("got 401"), "{none:?}");
    let variables = Ended::of(
        import("2")
            .env("ENCKE_IMPORT_TOKEN", "of-source")
            .env("ENCKE_IMPORT_TO_TOKEN", "of-destination"),
    );
    assert_eq!(variables.code, Some(0), "{variables:?}");
    from.append("a", vec![b" and more".to_vec()]);
    let header = format!("@{}", fields.display());
    let files = Ended::of(
        import("2")
            .args(["--header", &header, "--to-token-file"])
            .arg(&token),
    );
    assert_eq!(files.code, Some(0), "{files:?}");
    assert_eq!(
        to.held("a").expect("it was made").contents(),
        b"text and more"
    );
}
