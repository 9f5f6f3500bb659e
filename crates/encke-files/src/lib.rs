//! Files that operators name: configurations, keys, backups, logs.
//!
//! An ordinary `open` of a FIFO waits for the process at its other end, for ever if there is none, and a thread that waits there is
//! lost. These functions do not wait, or for a bounded time: a FIFO can be read that another process fills, as in
//! `--config <(...)`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// Reads a file, up to one byte beyond `bytes_max`: that byte shows that the file is longer.
///
/// # Errors
/// It can't be read, or no process has written all of a FIFO within ten seconds.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_within(path, bytes_max, FIFO_TIMEOUT)
}

/// Reads a whole file.
///
/// # Errors
/// Those of [`read`]; the file is longer than `bytes_max`.
pub fn read_whole(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let bytes = read(path, bytes_max)?;
    match bytes.len() as u64 > bytes_max {
        false => Ok(bytes),
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {bytes_max} bytes"),
        )),
    }
}

/// Reads a file as text.
///
/// # Errors
/// Those of [`read_whole`] with 64 MiB; the file is no text in UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_whole(path, TEXT_BYTES_MAX)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Opens a file to append to it; makes it if it is missing.
///
/// # Errors
/// It can't be opened, or it is a FIFO that no process reads.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let opened = without_wait(File::options().create(true).append(true)).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => {
            io::Error::other("no process reads the FIFO")
        }
        _ => error,
    })?;
    // From here on a writer may wait: it has a thread of its own.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

fn read_within(path: &Path, bytes_max: u64, timeout: Duration) -> io::Result<Vec<u8>> {
    let file = without_wait(File::options().read(true)).open(path)?;
    let is_regular = file.metadata()?.is_file();
    let until = Instant::now() + timeout;
    let mut bytes = Vec::new();
    let mut rest = (&file).take(bytes_max.saturating_add(1));
    loop {
        if !is_regular {
            await_input(&file, until)?;
        }
        match rest.read_to_end(&mut bytes) {
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until there is something to read, or the end.
fn await_input(file: &File, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&left)) {
        Err(rustix::io::Errno::INTR) => await_input(file, until),
        Ok(0) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "it is no regular file, and no process has written all of it in time",
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn without_wait(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
}

/// How long another process may take to fill a FIFO.
const FIFO_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest text that is read.
const TEXT_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn fifo(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    #[test]
    fn a_fifo_without_another_end_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(&folder);
        let error = read_within(&path, 10, SHORT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = open_to_append(&path).unwrap_err().to_string();
        assert_eq!(error, "no process reads the FIFO");
    }

    #[test]
    fn a_fifo_that_is_filled_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(&folder);
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut file = File::options().write(true).open(path).unwrap();
                file.write_all(b"first ").unwrap();
                file.write_all(b"last").unwrap();
            }
        });
        assert_eq!(read(&path, 100).unwrap(), b"first last");
        writer.join().unwrap();
    }

    #[test]
    fn a_long_file_is_read_one_byte_further_than_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        open_to_append(&path).unwrap().write_all(b"123").unwrap();
        open_to_append(&path).unwrap().write_all(b"456").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"12345");
        assert_eq!(read(&path, 6).unwrap(), b"123456");
        assert_eq!(read_text(&path).unwrap(), "123456");
        let too_long = read_whole(&path, 5).unwrap_err().to_string();
        assert_eq!(too_long, "it is larger than 5 bytes");
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(
            read_text(&path).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        let missing = read(&folder.path().join("no"), 1).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_writer_that_stalls_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(&folder);
        // Opened for both, it waits for no reader.
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all(b"begun").unwrap();
        let read = read_within(&path, 100, SHORT);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
