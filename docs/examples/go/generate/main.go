package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "example.com/client/generation"
)

func main() {
	target, named := os.LookupEnv("EMBED_TARGET")
	if !named {
		target = "localhost:50051"
	}
	connection, err := grpc.Dial(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	temperature := float32(0)
	stream, err := pb.NewGenerationClient(connection).Generate(ctx, &pb.GenerateRequest{
		Model:    "smollm2-135m-instruct",
		Input:    &pb.GenerateRequest_Prompt{Prompt: "The capital of France is"},
		Sampling: &pb.Sampling{MaxTokens: 20, Temperature: &temperature},
	})
	if err != nil {
		log.Fatal(err)
	}
	tokens := uint32(0)
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(response.Text)
		tokens = response.Usage.GetCompletionTokens()
	}
	fmt.Println("\ntokens:", tokens)
}
