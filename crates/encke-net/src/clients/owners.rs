//! The owners of connections: four bytes for each, and none where no limits by address apply.

use super::addresses::AddressNo;
use crate::chunked_vec::ChunkedVec;
use crate::connection::exchange_id::ExchangeId;

/// The owners of a shard's connections by the numbers of their slots.
#[derive(Debug, Default)]
pub(crate) struct ConnectionOwners(ChunkedVec<u32>);

/// The owner of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The client's address; `None` for a client that is exempt from limits.
    pub(crate) address: Option<AddressNo>,
    /// The other end is a proxy that is trusted to name its clients.
    pub(crate) trusted: bool,
}

impl ConnectionOwners {
    pub(crate) fn of(&self, exchange: ExchangeId) -> Owner {
        self.0
            .get(exchange.slot())
            .map_or(Owner::default(), |bits| Owner {
                address: AddressNo::from_bits(*bits & !TRUSTED),
                trusted: bits & TRUSTED != 0,
            })
    }

    pub(crate) fn set(&mut self, exchange: ExchangeId, owner: Owner) {
        let index = exchange.slot();
        let trusted = if owner.trusted { TRUSTED } else { 0 };
        let bits = trusted | owner.address.map_or(0, AddressNo::to_bits);
        if bits == 0 && self.0.len() <= index as usize {
            return;
        }
        while self.0.len() <= index as usize {
            self.0.push(0);
        }
        self.0[index] = bits;
    }
}

const TRUSTED: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_owner_costs_nothing() {
        let mut owners = ConnectionOwners::default();
        owners.set(ExchangeId::new(5_000), Owner::default());
        assert_eq!(owners.0.len(), 0);
        let owner = Owner {
            address: AddressNo::from_bits(7),
            trusted: true,
        };
        owners.set(ExchangeId::new(3), owner);
        assert_eq!(owners.of(ExchangeId::new(3)), owner);
        assert_eq!(owners.of(ExchangeId::new(2)), Owner::default());
        owners.set(ExchangeId::new(3), Owner::default());
        assert_eq!(owners.of(ExchangeId::new(3)), Owner::default());
        assert_eq!(owners.of(ExchangeId::new(9_999)), Owner::default());
    }
}
