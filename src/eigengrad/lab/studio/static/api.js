// What the page asks of its server.

const GUARD = {"X-Eigengrad-Studio": "1"};

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {...options, headers: {...GUARD, ...options.headers}});
  } catch {
    throw new Error("The studio does not answer. Is `eigengrad studio` still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error ?? `The studio answered ${answer.status}`);
  return content;
}

export const get = (path) => request(path);
export const post = (path, body) => request(path, {method: "POST", body: JSON.stringify(body)});
export const remove = (path) => request(path, {method: "DELETE"});
export const fileAddress = (key, download = false) => `/api/files/${key}${download ? "?download=1" : ""}`;

/** Send a file; `shown(share)` is told how much has been sent. */
export function upload(file, name, kind, shown) {
  return new Promise((done, failed) => {
    const sending = new XMLHttpRequest();  // fetch does not say how far an upload is
    sending.open("POST", `/api/files?${new URLSearchParams({name, kind})}`);
    for (const [header, value] of Object.entries(GUARD)) sending.setRequestHeader(header, value);
    sending.responseType = "json";
    sending.upload.onprogress = (event) => shown?.(event.loaded / event.total);
    sending.onload = () => sending.status < 300 ? done(sending.response)
      : failed(new Error(sending.response?.error ?? `The studio answered ${sending.status}`));
    sending.onerror = () => failed(new Error("The upload broke off. Is the file too large, or the studio closed?"));
    sending.send(file);
  });
}

/** Wait for a job; `shown(job)` is told how far it is. The result, or an error that says why there is none. */
export async function finished(job, shown) {
  for (let pause = 80; ; pause = Math.min(pause * 1.3, 500)) {
    if (job.state === "done") return job.result;
    if (job.state === "failed") throw new Error(job.text);
    if (job.state === "cancelled") throw new DOMException("cancelled", "AbortError");
    shown?.(job);
    await new Promise((go) => setTimeout(go, pause));
    job = await get(`/api/jobs/${job.job}`);
  }
}
