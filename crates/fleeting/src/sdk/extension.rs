//! The service of the protocol extension, on top of a [`super::Provider`] that implements it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::erased::DynProvider;
use super::{Error, error_chain};
use crate::extension::{Notice, Offer, ResourceUsage};
use crate::model::Features;
use crate::model::InstanceId;
use crate::protocol::extension::instance_group_extension_server::InstanceGroupExtension;
use crate::protocol::extension::{
    self as wire, GetFeaturesRequest, GetFeaturesResponse, GetResourceUsageRequest, GetResourceUsageResponse,
    HookRequest, HookResponse, HostKeysRequest, HostKeysResponse, ListOffersRequest, ListOffersResponse,
    WatchNoticesRequest,
};

/// Stream of notices.
pub type Notices = Pin<Box<dyn Stream<Item = Notice> + Send>>;

/// The optional calls of the protocol extension.
#[async_trait]
pub trait Extension: Send + Sync {
    /// Returns which of the calls below are implemented. The host does not make the other calls.
    fn features(&self) -> Features;

    /// Returns the offers of the provider with their prices.
    ///
    /// # Errors
    /// Returns an error if the provider does not respond.
    async fn offers(&self) -> Result<Vec<Offer>, Error> {
        Ok(Vec::new())
    }

    /// Returns a stream of interruptions and stock changes from now on. Each caller receives all of them.
    fn notices(&self) -> Notices {
        Box::pin(futures::stream::pending())
    }

    /// Returns the current resource usage of these instances. Omits instances that cannot be measured.
    ///
    /// # Errors
    /// Returns an error if no instance can be measured.
    async fn resource_usage(&self, _ids: Vec<InstanceId>) -> Result<Vec<ResourceUsage>, Error> {
        Ok(Vec::new())
    }

    /// Returns the fingerprints (`SHA256:...`) of the host keys of an instance's SSH server.
    ///
    /// # Errors
    /// Returns an error if the instance is unknown or has no keys yet.
    async fn host_keys(&self, _id: InstanceId) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Prepares an instance for a job.
    ///
    /// # Errors
    /// Returns an error if the instance cannot be prepared. The job then gets another instance.
    async fn prepare(&self, _id: InstanceId, _job: String) -> Result<(), Error> {
        Ok(())
    }

    /// Cleans up an instance after a job, whatever its result.
    ///
    /// # Errors
    /// Returns an error if the instance cannot be cleaned up. The error counts against the health of the instance.
    async fn cleanup(&self, _id: InstanceId, _job: String) -> Result<(), Error> {
        Ok(())
    }
}

pub(super) struct Service {
    pub(super) provider: Arc<OnceLock<Box<dyn DynProvider>>>,
}

impl Service {
    /// Fails with `FAILED_PRECONDITION` before `Init`, and with `UNIMPLEMENTED` if the provider has no extension.
    fn extension(&self) -> Result<&dyn Extension, Status> {
        let provider = self.provider.get().ok_or_else(|| Status::failed_precondition("Init was not called"))?;
        provider.extension().ok_or_else(|| Status::unimplemented("this plugin has no extension"))
    }
}

fn unknown_status(error: &Error) -> Status {
    Status::unknown(error_chain(error.as_ref()))
}

#[tonic::async_trait]
impl InstanceGroupExtension for Service {
    type WatchNoticesStream = Pin<Box<dyn Stream<Item = Result<wire::Notice, Status>> + Send>>;

    async fn get_features(&self, _: Request<GetFeaturesRequest>) -> Result<Response<GetFeaturesResponse>, Status> {
        Ok(Response::new(self.extension()?.features().into()))
    }

    async fn list_offers(&self, _: Request<ListOffersRequest>) -> Result<Response<ListOffersResponse>, Status> {
        let offers = self.extension()?.offers().await.map_err(|error| unknown_status(&error))?;
        Ok(Response::new(ListOffersResponse { offers: offers.into_iter().map(Into::into).collect() }))
    }

    async fn watch_notices(
        &self,
        _: Request<WatchNoticesRequest>,
    ) -> Result<Response<Self::WatchNoticesStream>, Status> {
        let notices = self.extension()?.notices();
        Ok(Response::new(Box::pin(notices.map(|notice| Ok(notice.into())))))
    }

    async fn get_resource_usage(
        &self,
        request: Request<GetResourceUsageRequest>,
    ) -> Result<Response<GetResourceUsageResponse>, Status> {
        let ids = request.into_inner().instances.into_iter().map(InstanceId::from).collect();
        let usages = self.extension()?.resource_usage(ids).await.map_err(|error| unknown_status(&error))?;
        Ok(Response::new(GetResourceUsageResponse { usages: usages.into_iter().map(Into::into).collect() }))
    }

    async fn host_keys(&self, request: Request<HostKeysRequest>) -> Result<Response<HostKeysResponse>, Status> {
        let id = InstanceId::from(request.into_inner().instance);
        let fingerprints = self.extension()?.host_keys(id).await.map_err(|error| unknown_status(&error))?;
        Ok(Response::new(HostKeysResponse { fingerprints }))
    }

    async fn prepare(&self, request: Request<HookRequest>) -> Result<Response<HookResponse>, Status> {
        let HookRequest { instance, job } = request.into_inner();
        self.extension()?.prepare(instance.into(), job).await.map_err(|error| unknown_status(&error))?;
        Ok(Response::new(HookResponse {}))
    }

    async fn cleanup(&self, request: Request<HookRequest>) -> Result<Response<HookResponse>, Status> {
        let HookRequest { instance, job } = request.into_inner();
        self.extension()?.cleanup(instance.into(), job).await.map_err(|error| unknown_status(&error))?;
        Ok(Response::new(HookResponse {}))
    }
}
