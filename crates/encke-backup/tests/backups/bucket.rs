//! Backups in a bucket of a server that is late, throttles, loses and lies.

use std::time::Duration;

use crate::s3::S3Server;
use crate::source::{How, Source, check_restored, in_bucket};

#[test]
fn a_late_list_costs_no_piece_of_a_backup() {
    let server = S3Server::start();
    server.faults().list_delay = Duration::from_millis(500);
    let mut source = Source::new();
    let repository = in_bucket(&server);
    let mut made = Vec::new();
    for round in 1..=4 {
        source.append(10);
        // Lists have the pieces, and not the backup, when old ones are removed.
        let mut progress = |done, all| {
            if done == all {
                server.wait_for_list();
            }
        };
        let backup = source.back_up_with(&repository, How::keeping(2), &mut progress);
        made.push(backup.unwrap().report.name);
        for name in made.iter().rev().take(2) {
            check_restored(&repository, *name);
        }
        let last = made[made.len() - 1];
        assert_eq!(check_restored(&repository, last), 300 + 10 * round);
    }
}

#[test]
fn what_a_bucket_loses_is_stored_again() {
    let server = S3Server::start();
    let source = Source::new();
    let repository = in_bucket(&server);
    source.back_up(&repository, How::default()).unwrap();
    let again = source.back_up(&repository, How::default()).unwrap();
    assert_eq!((again.unsound, again.read_bytes), (0, 0));
    server.lose_pieces(2);
    let made = source.back_up(&repository, How::default()).unwrap();
    assert_eq!(made.unsound, 2);
    assert_eq!(check_restored(&repository, made.report.name), 300);
    // Another program has changed an object.
    server.damage_piece();
    let made = source.back_up(&repository, How::default()).unwrap();
    assert_eq!(made.unsound, 1);
    assert_eq!(check_restored(&repository, made.report.name), 300);
}

#[test]
fn a_server_that_lies_about_what_it_has_stored_is_asked_again() {
    let server = S3Server::start();
    let mut source = Source::new();
    let repository = in_bucket(&server);
    {
        let mut faults = server.faults();
        (faults.puts_lost, faults.puts_cut) = (2, 1);
    }
    let made = source.back_up(&repository, How::default()).unwrap();
    assert_eq!(check_restored(&repository, made.report.name), 300);
    assert_eq!(server.faults().puts_lost, 0);
    // One that stores nothing has no backup.
    server.faults().puts_lost = u32::MAX;
    source.append(10);
    let refused = source.back_up(&repository, How::default()).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("does not give it back"), "{refused}");
    server.faults().puts_lost = 0;
    assert_eq!(repository.backups().unwrap(), [made.report.name]);
}

#[test]
fn requests_that_may_pass_are_made_again() {
    let server = S3Server::start();
    let source = Source::new();
    let repository = in_bucket(&server);
    server.faults().refusals = vec![
        (400, "RequestTimeout"),
        (408, ""),
        (409, "OperationAborted"),
        (429, ""),
        (500, "InternalError"),
        (503, "SlowDown"),
    ];
    let made = source.back_up(&repository, How::keeping(1)).unwrap();
    assert_eq!(server.faults().refusals, [], "each was met");
    assert_eq!(check_restored(&repository, made.report.name), 300);
    // Others are not.
    server.faults().refusals = vec![(400, "InvalidDigest"); 20];
    let refused = source.back_up(&repository, How::default()).unwrap_err();
    assert!(refused.to_string().contains("InvalidDigest"), "{refused}");
    assert_eq!(server.faults().refusals.len(), 19);
}

#[test]
fn a_list_that_does_not_end_is_refused() {
    let server = S3Server::start();
    let source = Source::new();
    let repository = in_bucket(&server);
    source.back_up(&repository, How::default()).unwrap();
    server.faults().endless_list = true;
    let refused = source.back_up(&repository, How::default()).unwrap_err();
    assert!(refused.to_string().contains("does not end"), "{refused}");
}
