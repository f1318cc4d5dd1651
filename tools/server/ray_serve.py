"""Replicas of `hologram serve` under Ray Serve, which starts them, routes requests and replaces those that die.

    pip install 'ray[serve]' httpx
    HOLOGRAM="hologram serve -m model.gguf" REPLICAS=2 serve run ray_serve:app
"""

import asyncio
import os
import shlex

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve

api = FastAPI()


@serve.deployment(num_replicas=int(os.environ.get("REPLICAS", "2")), max_ongoing_requests=64)
@serve.ingress(api)
class Hologram:
    async def __init__(self, command):
        command = [*shlex.split(command), "--port", "0"]
        self.process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        address = (await self.process.stdout.readline()).decode().split()[0]
        self.client = httpx.AsyncClient(base_url=address, timeout=None)

    def check_health(self):
        if self.process.returncode is not None:
            raise RuntimeError("hologram serve has ended")

    @api.api_route("/{path:path}", methods=["GET", "POST"])
    async def forward(self, request: Request, path: str):
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
        sent = self.client.build_request(request.method, f"/{path}", headers=headers, content=await request.body())
        answer = await self.client.send(sent, stream=True)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, dict(answer.headers))


app = Hologram.bind(os.environ.get("HOLOGRAM", "hologram serve"))
