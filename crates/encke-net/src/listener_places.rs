//! The places of a listener that is small on purpose: for operators, and for connections that get one response. A newcomer always finds one, so
//! that connections which do nothing keep no one out.

use crate::clients::addresses::Key;

/// The connections of a listener, and which of them makes room for a newcomer.
#[derive(Debug)]
pub(crate) struct ListenerPlaces<C> {
    max: usize,
    /// Places of one address.
    share: usize,
    /// The one that was quiet for longest comes first.
    taken: Vec<Place<C>>,
}

#[derive(Debug)]
struct Place<C> {
    connection: C,
    key: Key,
}

/// What a connection is doing, in the order in which connections make room for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// It has no request, or not all of one.
    Nothing,
    /// It does not read its response.
    Stalling,
    /// The server works on its request. It keeps its place.
    Working,
}

/// There is no place: the server works on the requests of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPlace;

impl<C: Copy + PartialEq> ListenerPlaces<C> {
    /// That many places; one address has at most `share` of them.
    pub(crate) fn new(max: usize, share: usize) -> Self {
        ListenerPlaces {
            max,
            share,
            taken: Vec::new(),
        }
    }

    /// Gives a newcomer a place. Returns the connection that has lost its own, if one has: one of the same address if that has its
    /// share, otherwise any.
    pub(crate) fn enter(
        &mut self,
        connection: C,
        key: Key,
        doing: impl Fn(C) -> Doing,
    ) -> Result<Option<C>, NoPlace> {
        let of_address = self.taken.iter().filter(|place| place.key == key).count();
        let own_only = of_address >= self.share;
        let mut lost = None;
        if own_only || self.taken.len() >= self.max {
            let places = self.taken.iter().enumerate();
            let at = places
                .filter(|(_, place)| !own_only || place.key == key)
                .map(|(at, place)| (doing(place.connection), at))
                .filter(|(doing, _)| *doing < Doing::Working)
                .min()
                .map(|(_, at)| at);
            lost = Some(self.taken.remove(at.ok_or(NoPlace)?).connection);
        }
        self.taken.push(Place { connection, key });
        Ok(lost)
    }

    /// A connection has made a request: others make room before it.
    pub(crate) fn note_request(&mut self, connection: C) {
        if let Some(at) = self.position(connection) {
            let place = self.taken.remove(at);
            self.taken.push(place);
        }
    }

    /// A connection is closed.
    pub(crate) fn leave(&mut self, connection: C) {
        if let Some(at) = self.position(connection) {
            self.taken.remove(at);
        }
    }

    fn position(&self, connection: C) -> Option<usize> {
        let mut places = self.taken.iter();
        places.position(|place| place.connection == connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_takes_the_place_of_the_one_that_is_quiet_for_longest() {
        let mut places = ListenerPlaces::new(4, 4);
        for number in 0..4 {
            assert_eq!(places.enter(number, 7, |_| Doing::Nothing), Ok(None));
        }
        places.note_request(0);
        assert_eq!(places.enter(4, 7, |_| Doing::Nothing), Ok(Some(1)));
        // One that stalls goes before one that works, and behind one that does nothing.
        let doing = |number| match number {
            2 => Doing::Working,
            3 => Doing::Stalling,
            _ => Doing::Nothing,
        };
        assert_eq!(places.enter(5, 7, doing), Ok(Some(0)));
        assert_eq!(places.enter(6, 7, |_| Doing::Working), Err(NoPlace));
        let stalls = |number| match number {
            2 => Doing::Working,
            _ => Doing::Stalling,
        };
        assert_eq!(places.enter(6, 7, stalls), Ok(Some(3)));
        places.leave(2);
        assert_eq!(places.enter(7, 7, doing), Ok(None), "one is free");
    }

    #[test]
    fn an_address_at_its_share_loses_places_of_its_own_only() {
        let mut places = ListenerPlaces::new(4, 3);
        assert_eq!(places.enter(100, 1, |_| Doing::Nothing), Ok(None));
        for number in 0..3 {
            assert_eq!(places.enter(number, 2, |_| Doing::Nothing), Ok(None));
        }
        for number in 3..50 {
            let lost = places.enter(number, 2, |_| Doing::Nothing);
            assert_eq!(lost, Ok(Some(number - 3)));
        }
        assert_eq!(places.enter(50, 2, |_| Doing::Working), Err(NoPlace));
        // A third address finds a place too.
        assert_eq!(places.enter(200, 3, |_| Doing::Nothing), Ok(Some(100)));
    }
}
