import os

import grpc

from protos.embedding.v1.embedding_pb2 import TRUNCATE_END
from protos.ranking.v1 import ranking_pb2 as pb
from protos.ranking.v1 import ranking_pb2_grpc as rpc

documents = ["Paris is the capital of France.", "Rain falls from clouds.", "France has many rivers."]
request = pb.RankRequest(
    model="ranker",
    query="what is the capital of France",
    documents=documents,
    top_n=2,
    return_documents=True,
    truncate=TRUNCATE_END,
)
with grpc.insecure_channel(os.environ.get("EMBED_TARGET", "localhost:50051")) as channel:
    answer = rpc.RankingStub(channel).Rank(request, timeout=10)
for found in answer.results:
    if found.status.code:
        print(f"{documents[found.index]!r} has no score: {found.status.message}")
    else:
        print(f"{found.score:.3f}", found.document)
print("ranked:", len(answer.results))
