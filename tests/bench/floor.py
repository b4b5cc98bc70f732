"""The floor: a bare handler that makes the database round trips that the contract needs, and nothing else.

It has the service's event loop, driver, pool, projections and write concern. Arguments: URI and name of the
database. It prints its port.
"""

import asyncio
import sys

import grpc
import uvloop

from tests.bench import bare
from tests.bench.histories import SCOPE
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, replay_pb2
from turnstore_service.storage.mongo import documents, driver, lines


class Floor(history_service_pb2_grpc.HistoryServiceServicer):
    def __init__(self, uri, name):
        client = driver.AsyncIOMotorClient(uri, maxPoolSize=driver.MAX_CALLS + 4, tz_aware=True)
        concern = driver.WriteConcern("majority", j=True)
        self.responses = client[name].get_collection("responses", write_concern=concern)
        self.turns = asyncio.Semaphore(driver.MAX_CALLS)

    async def call(self, method, *arguments, **options):
        async with self.turns:
            return await method(*arguments, **options)

    async def find(self, query, projection, sort=None, limit=1):
        return await self.call(self.responses.find(query, projection, sort=sort, limit=limit).to_list, None)

    async def end(self, link):
        query, sort = {"_id": documents.response_key(SCOPE, link.previous_response_id, 0)}, None
        if link.conversation_id:
            thread = lines.conversation_thread(link.conversation_id)
            query, sort = {"scope": SCOPE.key, "thread": thread, "place": {"$gte": 1}}, [("place", -1)]
        return (await self.find(query, {"_id": 0, "thread": 1, "place": 1, "root": 1}, sort))[0]

    async def StoreResponse(self, request, context):  # noqa: N802
        sent, key = request.response, documents.response_key(SCOPE, request.response.id, 0)
        if sent.input_items:
            found = bare.created(key, sent, await self.end(sent))
            await self.call(self.responses.insert_one, found)
        else:
            update, change = self.responses.find_one_and_update, bare.changed(sent)
            found = await self.call(update, {"_id": key}, change, bare.WRITTEN, return_document=True)
        return rpc.StoreResponseResponse(response=bare.response(found, whole=False))

    async def GetResponse(self, request, context):  # noqa: N802
        key = documents.response_key(SCOPE, request.response_id, 0)
        (found,) = await self.find({"_id": key}, bare.WHOLE)
        return rpc.GetResponseResponse(response=bare.response(found, whole=True))

    async def ResolveHistory(self, request, context):  # noqa: N802
        full, limit = request.view == replay_pb2.HISTORY_VIEW_FULL, request.limit
        end = {"thread": lines.conversation_thread(request.conversation_id), "place": lines.NO_END - 1}
        if request.previous_response_id:
            end = await self.end(request)
        query = {"scope": SCOPE.key, "thread": end["thread"], "replay_place": {"$lte": end["place"]}}
        projection = documents.WITH_BODIES if full else documents.IDS
        turns = (await self.find(query, projection, [("replay_place", -1)], limit // 2 + 1))[::-1]
        ids = [item_id for turn in turns for part in bare.PARTS for item_id in turn[part]["ids"]]
        reply = rpc.ResolveHistoryResponse(item_ids=ids[-limit:], truncated=len(ids) > limit)
        if full:
            reply.items.extend(bare.items(turns)[-limit:])
        return reply


async def main():
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    history_service_pb2_grpc.add_HistoryServiceServicer_to_server(Floor(*sys.argv[1:]), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


uvloop.run(main())
