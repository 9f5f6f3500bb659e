//! The form of a record in an encoding.

use encke_clock::WallTime;
use encke_stream::Offset;

use super::written_data::WrittenData;
use crate::text::CutCharacter;

/// How an encoder writes a record.
#[derive(Clone, Debug)]
pub struct RecordForm {
    /// Bytes before the data.
    pub head: Vec<u8>,
    /// How the data is written.
    pub data: DataForm,
    /// Bytes behind the data.
    pub tail: Vec<u8>,
}

impl RecordForm {
    /// Hands over each message of at most `bytes_max` bytes.
    pub(crate) fn each_message(bytes_max: usize) -> RecordForm {
        RecordForm {
            head: Vec::new(),
            data: DataForm::EachMessage(bytes_max),
            tail: Vec::new(),
        }
    }

    /// The same with more around it.
    pub(crate) fn within(mut self, mut head: Vec<u8>, tail: &[u8]) -> RecordForm {
        head.append(&mut self.head);
        self.tail.extend_from_slice(tail);
        RecordForm { head, ..self }
    }
}

/// How the data of a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataForm {
    /// Messages of JSON as they are, separated by commas.
    Messages,
    /// The same without line ends.
    FlatMessages,
    /// The same inside a `data` line of an event, which has begun.
    EventMessages,
    /// Text as `data` lines of an event.
    EventText,
    /// The inside of a string of JSON.
    String,
    /// Base64.
    Base64,
    /// A line of JSON for each message, with the position behind it and this time.
    MessageLines(Option<WallTime>),
    /// Each message is handed to [`Encoder::message`](crate::Encoder::message). Messages with more bytes than this are left out.
    EachMessage(usize),
}

/// The facts of a record from which an encoder derives its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFacts {
    /// The kind of the data.
    pub data: WrittenData,
    /// The position behind what is written.
    pub end: Offset,
    /// The time of the record.
    pub time: WallTime,
    /// The beginning of a character at its end, which is withheld until the rest comes.
    pub withheld: CutCharacter,
}
