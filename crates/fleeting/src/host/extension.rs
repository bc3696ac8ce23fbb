//! Calls of the protocol extension, for plugins that implement it.

use std::time::Duration;

use futures::{Stream, StreamExt};
use tonic::Code;

use super::call::{CallError, CallFailure, Caller};
use super::group::Group;
use crate::extension::{Notice, Offer, ResourceUsage};
use crate::model::Features;
use crate::model::InstanceId;
use crate::protocol::extension::{
    GetFeaturesRequest, GetResourceUsageRequest, HookRequest, HostKeysRequest, ListOffersRequest, WatchNoticesRequest,
};

/// Timeout for querying the features of a plugin.
/// A plugin that does not respond is used without the extension.
const FEATURES_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that [`Group::notices`] waits for the plugin to open the stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

impl Caller {
    /// Returns the parts of the extension that the plugin has.
    /// Plugins without the extension, such as all Go plugins, have none.
    pub(super) async fn features(&self) -> Features {
        let mut client = self.connection.extension();
        match self.call_raw("GetFeatures", FEATURES_TIMEOUT, client.get_features(GetFeaturesRequest {})).await {
            Ok(answer) => answer.into_inner().into(),
            Err(CallFailure::Status(status)) if status.code() == Code::Unimplemented => Features::default(),
            Err(error) => {
                let error = self.call_error("GetFeatures", error);
                tracing::warn!(plugin = self.plugin, %error, "failed to query the plugin's features; not using its extension");
                Features::default()
            }
        }
    }
}

impl Group {
    fn require(&self, is_supported: bool, capability: &'static str) -> Result<(), CallError> {
        if is_supported { Ok(()) } else { Err(CallError::NoCapability { plugin: self.name().to_owned(), capability }) }
    }

    /// Returns the offers of the provider with their prices.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin has no offers, or another [`CallError`].
    pub async fn offers(&self) -> Result<Vec<Offer>, CallError> {
        self.require(self.features().offers, "offers")?;
        let process = self.live_process()?;
        let caller = &process.caller;
        let mut client = caller.connection.extension();
        let answer = caller.call("ListOffers", caller.timeouts.update, client.list_offers(ListOffersRequest {})).await;
        let offers = process.record_outcome(answer)?.into_inner().offers;
        Ok(offers.into_iter().map(Into::into).collect())
    }

    /// Returns a stream of interruptions and stock changes from now on.
    /// The stream ends with its first error, such as the end of the plugin's process.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin has no notices, [`CallError::Down`] if no process is running.
    pub async fn notices(&self) -> Result<impl Stream<Item = Notice> + Send + Unpin + 'static, CallError> {
        self.require(self.features().notices, "notices")?;
        let process = self.live_process()?;
        let (plugin, mut client) = (self.name().to_owned(), process.caller.connection.extension());
        let mut opening = Box::pin(async move {
            match client.watch_notices(WatchNoticesRequest {}).await {
                Ok(answer) => answer.into_inner().left_stream(),
                Err(status) => {
                    tracing::warn!(plugin, error = status.message(), "failed to open the plugin's stream of notices");
                    futures::stream::empty().right_stream()
                }
            }
        });
        // After this wait, the plugin has received the request, even if it delays its response. It therefore sends all later notices.
        let notices = match tokio::time::timeout(OPEN_TIMEOUT, &mut opening).await {
            Ok(opened) => opened.left_stream(),
            Err(_) => futures::stream::once(opening).flatten().right_stream(),
        };
        // The stream ends at the first error. Notices of a kind that this host does not know are dropped.
        let notices = notices.take_while(|message| std::future::ready(message.is_ok()));
        Ok(Box::pin(notices.filter_map(|message| std::future::ready(message.ok().and_then(Notice::from_wire)))))
    }

    /// Returns the current resource usage of these instances.
    /// Omits the instances that the plugin could not measure.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin does not report usage, or another [`CallError`].
    pub async fn resource_usage(&self, ids: &[InstanceId]) -> Result<Vec<ResourceUsage>, CallError> {
        self.require(self.features().resource_usage, "resource_usage")?;
        let process = self.live_process()?;
        let caller = &process.caller;
        let mut client = caller.connection.extension();
        let request = GetResourceUsageRequest { instances: ids.iter().map(|id| id.as_str().to_owned()).collect() };
        let answer =
            caller.call("GetResourceUsage", caller.timeouts.heartbeat, client.get_resource_usage(request)).await;
        let usages = process.record_outcome(answer)?.into_inner().usages;
        Ok(usages.into_iter().map(ResourceUsage::from).filter(|usage| ids.contains(&usage.instance)).collect())
    }

    /// Returns the fingerprints of an instance's SSH host keys. Empty if the plugin does not know them.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn host_keys(&self, id: &InstanceId) -> Result<Vec<String>, CallError> {
        if !self.features().host_keys {
            return Ok(Vec::new());
        }
        let process = self.live_process()?;
        let caller = &process.caller;
        let mut client = caller.connection.extension();
        let call = client.host_keys(HostKeysRequest { instance: id.as_str().to_owned() });
        let answer = caller.call("HostKeys", caller.timeouts.connect_info, call).await;
        Ok(process.record_outcome(answer)?.into_inner().fingerprints)
    }

    /// Runs the plugin's hook before a job starts on an instance. Does nothing if the plugin has no hooks.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the plugin's message, or another [`CallError`]. The job cannot run on the instance.
    pub async fn prepare(&self, id: &InstanceId, job: &str) -> Result<(), CallError> {
        if !self.features().hooks {
            return Ok(());
        }
        let process = self.live_process()?;
        let caller = &process.caller;
        let mut client = caller.connection.extension();
        let call = client.prepare(HookRequest { instance: id.as_str().to_owned(), job: job.to_owned() });
        let answer = caller.call("Prepare", caller.timeouts.change, call).await;
        process.record_outcome(answer).map(drop)
    }

    /// Runs the plugin's hook after a job ended on an instance, whatever its result.
    /// Does nothing if the plugin has no hooks.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the plugin's message, or another [`CallError`]. The instance may not be clean.
    pub async fn cleanup(&self, id: &InstanceId, job: &str) -> Result<(), CallError> {
        if !self.features().hooks {
            return Ok(());
        }
        let process = self.live_process()?;
        let caller = &process.caller;
        let mut client = caller.connection.extension();
        let call = client.cleanup(HookRequest { instance: id.as_str().to_owned(), job: job.to_owned() });
        let answer = caller.call("Cleanup", caller.timeouts.change, call).await;
        process.record_outcome(answer).map(drop)
    }
}
