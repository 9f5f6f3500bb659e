//! Loads streams of all logs from their stores into the views.

use std::sync::Arc;

use encke_log::StreamNo;

use crate::Stream;
use crate::at_rest::list::{ListFetch, StreamPage};
use crate::at_rest::load::{LoadError, Loader, Store};
use crate::stream::number::{home, log_of};
use crate::view::lookup::Lookup;
use crate::view::views::Views;

/// Loads streams of all logs from their stores into the views.
#[derive(Clone, Debug)]
pub struct Loaders<S> {
    views: Arc<Views>,
    loaders: Vec<Loader<S>>,
}

impl<S: Store> Loaders<S> {
    /// The loaders of all logs, by the logs' indices. There is one for each view.
    pub fn new(views: Arc<Views>, loaders: Vec<Loader<S>>) -> Self {
        debug_assert_eq!(views.logs(), loaders.len(), "a loader for each log");
        Loaders { views, loaders }
    }

    /// The views that it loads into.
    pub fn views(&self) -> &Views {
        &self.views
    }

    /// Looks a name up, in memory or in a store. The result stays in memory as long as it is held.
    ///
    /// # Errors
    /// See [`LoadError`]; never for a name that is free.
    pub fn load(&self, name: &str) -> Result<Lookup, LoadError> {
        let home = home(name, self.loaders.len());
        let known = self.loaders[home].load(name)?;
        if known.stream().is_some() {
            return Ok(known);
        }
        for (log, loader) in self.loaders.iter().enumerate() {
            if log == home || !self.views.log(log).has_strays() {
                continue;
            }
            let stray = loader.load(name)?;
            if stray.stream().is_some() {
                return Ok(stray);
            }
        }
        Ok(known)
    }

    /// A page of the streams of all logs, by name.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn list(&self, fetch: &ListFetch) -> Result<StreamPage, LoadError> {
        let pages = self.loaders.iter().map(|loader| loader.list(fetch));
        let pages = pages.collect::<Result<Vec<_>, _>>()?;
        Ok(StreamPage::joined(pages, fetch.count_max))
    }

    /// The loader of a log.
    pub fn of_log(&self, log: usize) -> Option<&Loader<S>> {
        self.loaders.get(log)
    }

    /// The stream with this number, unless it has ended, from memory or from the store of its log.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_number(&self, no: StreamNo) -> Result<Option<Arc<Stream>>, LoadError> {
        match self.loaders.get(log_of(no)) {
            Some(loader) => loader.load_number(no),
            None => Ok(None),
        }
    }
}
