//! Artifacts: streamed multipart uploads of unknown length, and downloads (docs/spec/runner-api.md, section 5).

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use muster_job::JobId;

use super::answer::Refusal;
use super::{Service, empty, header_text, job_token};
use crate::service::{ArtifactQuery, ServiceError};

/// `POST /jobs/:id/artifacts`: 201. Reads the part `file` of any content type (docs/spec/runner-api.md, section 11.41).
pub(super) async fn upload(
    State(service): State<Service>,
    Path(job): Path<i64>,
    Query(query): Query<ArtifactQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let token = job_token(&headers)?.to_owned();
    let boundary = header_text(&headers, header::CONTENT_TYPE.as_str())
        .and_then(|kind| multer::parse_boundary(kind).ok())
        .ok_or_else(|| ServiceError::BadRequest("the body is not multipart/form-data".to_owned()))?;
    let mut parts = multer::Multipart::new(body.into_data_stream(), boundary);
    while let Some(part) = parts.next_field().await.map_err(malformed)? {
        if part.name() != Some("file") {
            continue;
        }
        let filename = part
            .file_name()
            .map(base_name)
            .filter(|name| !matches!(*name, "" | "." | ".."))
            .ok_or_else(|| ServiceError::BadRequest("the part `file` has no file name".to_owned()))?
            .to_owned();
        let content = part.map_err(std::io::Error::other).boxed();
        service.upload_artifact(JobId(job), &token, query, filename, content).await?;
        return Ok(empty(StatusCode::CREATED));
    }
    Err(ServiceError::BadRequest("the upload has no part `file`".to_owned()).into())
}

/// `GET /jobs/:id/artifacts`: 200 with the archive. Ignores `direct_download`.
pub(super) async fn download(
    State(service): State<Service>,
    Path(job): Path<i64>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let archive = service.download_artifacts(JobId(job), job_token(&headers)?).await?;
    let mut response = Response::new(Body::from_stream(archive.body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(archive.size));
    let name = archive.filename.replace(['"', '\\'], "_");
    if let Ok(value) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// Returns the last segment of a file name, so that an upload cannot select its directory.
fn base_name(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or_default()
}

fn malformed(error: multer::Error) -> Refusal {
    Refusal(ServiceError::BadRequest(format!("invalid multipart body: {error}")))
}
