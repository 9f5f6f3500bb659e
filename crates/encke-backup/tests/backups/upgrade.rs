//! Backups while another process takes the server over.

use std::io::Read;
use std::os::unix::net::UnixStream;

use encke_backup::{BackupError, SnapshotServer};

use crate::source::{How, Source, check_restored, in_directory};

#[test]
fn a_backup_that_meets_an_upgrade_waits() {
    let mut source = Source::new();
    let place = tempfile::tempdir().unwrap();
    let repository = in_directory(place.path());
    source.server.take().unwrap().hand_over();
    // The socket stays, and says so.
    let mut said = String::new();
    let mut client = UnixStream::connect(source.path().join("snapshots")).unwrap();
    client.read_to_string(&mut said).unwrap();
    assert_eq!(said, "\"upgrading\"\n");
    let backup = std::thread::scope(|scope| {
        let making = scope.spawn(|| {
            let repository = in_directory(&place.path().join("other"));
            let mut pieces = encke_backup::StoredPieces::examine(&repository, how().verify_within)?;
            encke_backup::back_up(source.path(), &mut pieces, &mut |_, _| {})
        });
        let metrics = encke_backup::SnapshotMetrics::new(&prometheus::Registry::new()).unwrap();
        let server = SnapshotServer::start(source.path(), source.readers(), metrics).unwrap();
        let made = making.join().unwrap();
        server.stop();
        made
    });
    assert!(backup.is_ok(), "{backup:?}");
    // One that has begun begins again.
    source.serve();
    let path = source.path().to_owned();
    let (readers, mut server) = (source.readers(), source.server.take());
    let mut is_met = false;
    let made = source.back_up_with(&repository, how(), &mut |done, _| {
        if done > 0 && !is_met {
            is_met = true;
            server.take().unwrap().hand_over();
            let metrics = encke_backup::SnapshotMetrics::new(&prometheus::Registry::new()).unwrap();
            server = Some(SnapshotServer::start(&path, readers.clone(), metrics).unwrap());
        }
    });
    assert!(is_met);
    assert_eq!(check_restored(&repository, made.unwrap().report.name), 300);
    server.take().unwrap().stop();
    let refused = source.back_up(&repository, how()).unwrap_err();
    assert!(
        matches!(refused, BackupError::NotRunning { .. }),
        "{refused}"
    );
}

fn how() -> How {
    How::default()
}
